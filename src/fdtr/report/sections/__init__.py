"""The sections of a report: each turns a part of the record into words, tables and charts."""
