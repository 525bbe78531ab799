"""Print the folder of dovetail_pipeline.h and its sources."""

from dovetail.call.pipeline import FOLDER

print(FOLDER)  # noqa: T201
