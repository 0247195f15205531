"""What is to be run, as plain data: which agent in which environment, and how it is written as JSON and read again."""
