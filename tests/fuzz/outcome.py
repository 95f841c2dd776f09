"""What may happen to a generated input, in classes. All but `RIGHT` and `ERROR` are faults."""

import signal
import traceback
from collections.abc import Callable
from types import FrameType

RIGHT, ERROR, TRACEBACK, HANG, SILENT = "right", "clear error", "traceback", "hang", "silent wrong result"
CRASH = "crash"  # the process died
SECONDS = 60  # after which a case counts as hanging


class SilentlyWrong(Exception):
    """A case that went through and is wrong."""


class ClearError(Exception):
    """What a case turns the errors into that the edge it tests may raise."""


class _Hang(BaseException):
    pass


def classify(case: Callable[[], None]) -> tuple[str, str]:
    """The class of a case and what was said. Crashes, and native code that hangs, are found by the process around."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise _Hang

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        case()
    except ClearError as error:
        text = str(error)
        return (ERROR, text) if is_clear(text) else (TRACEBACK, f"not one clear line: {text!r}")
    except SilentlyWrong as error:
        return SILENT, str(error)
    except _Hang:
        return HANG, traceback.format_exc(limit=-3)
    except Exception:
        return TRACEBACK, traceback.format_exc(limit=-4)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return RIGHT, ""


def is_clear(text: str) -> bool:
    """One line of a length that people read, in characters that every terminal prints."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return 10 < len(text) < 2000 and "\n" not in text
