"""What is decided: values and pure rules. No I/O, no clock, nothing outside the standard library."""
