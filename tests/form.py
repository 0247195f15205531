"""What is a matter of form, such as headings or a number of lines: pytest shows it as a warning, and no test fails."""

import warnings


class FormWarning(UserWarning):
    """Says that a text has not the form that CONTRIBUTING asks for."""


def ask_for(kept: bool, message: str) -> None:
    """Warns with a message unless the form is kept; here alone a warning is no error."""
    if not kept:
        with warnings.catch_warnings():
            warnings.simplefilter("always", FormWarning)
            warnings.warn(message, FormWarning, stacklevel=2)
