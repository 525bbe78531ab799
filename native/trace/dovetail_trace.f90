! Intervals and points of Fortran programs: the functions of dovetail_trace.h. `use dovetail_trace`, and link with
! -ldovetail_trace. trace_name gives the number of a name. Calls of trace_init and trace_finalize may nest, and so may
! intervals.
module dovetail_trace
  use, intrinsic :: iso_c_binding, only: c_char, c_int, c_int64_t, c_null_char
  implicit none
  private
  public :: trace_init, trace_finalize, trace_name, trace_begin, trace_end, trace_point, trace_on, trace_off

  interface
    integer(c_int) function c_init(folder) bind(c, name="dovetail_trace_init")
      import :: c_char, c_int
      character(kind=c_char), intent(in) :: folder(*)
    end function
    integer(c_int) function c_name(text) bind(c, name="dovetail_trace_name")
      import :: c_char, c_int
      character(kind=c_char), intent(in) :: text(*)
    end function
    subroutine trace_begin(name, arg) bind(c, name="dovetail_trace_begin")
      import :: c_int, c_int64_t
      integer(c_int), value :: name
      integer(c_int64_t), value :: arg
    end subroutine
    subroutine trace_end(name, arg) bind(c, name="dovetail_trace_end")
      import :: c_int, c_int64_t
      integer(c_int), value :: name
      integer(c_int64_t), value :: arg
    end subroutine
    subroutine trace_point(name, arg) bind(c, name="dovetail_trace_point")
      import :: c_int, c_int64_t
      integer(c_int), value :: name
      integer(c_int64_t), value :: arg
    end subroutine
    subroutine trace_on() bind(c, name="dovetail_trace_on")
    end subroutine
    subroutine trace_off() bind(c, name="dovetail_trace_off")
    end subroutine
    subroutine trace_finalize() bind(c, name="dovetail_trace_finalize")
    end subroutine
  end interface

contains

  ! Starts tracing into a new file in a folder. Returns 0, or the system's error number.
  integer(c_int) function trace_init(folder)
    character(*), intent(in) :: folder
    trace_init = c_init(trim(folder)//c_null_char)
  end function

  ! Returns the number of a name; equal texts have equal numbers.
  integer(c_int) function trace_name(text)
    character(*), intent(in) :: text
    trace_name = c_name(trim(text)//c_null_char)
  end function
end module
