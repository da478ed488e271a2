"""`yard doctor`: asks every host what it sees, and says what would break a job, why, and what to do."""
