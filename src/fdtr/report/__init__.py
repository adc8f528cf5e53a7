"""What a person reads: the report of a study and the page of a message, each one HTML file that fetches nothing."""
