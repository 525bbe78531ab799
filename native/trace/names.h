/* The numbers of names, for record.c. Callers hold its lock. */
#ifndef DOVETAIL_TRACE_NAMES_H
#define DOVETAIL_TRACE_NAMES_H

int dvt_name(const char* text, const char* lane); /* returns the number of a name; `lane` NULL: none. 0: too many */
void dvt_write_names(void);                       /* writes all names to the file that has just been opened */

#endif
