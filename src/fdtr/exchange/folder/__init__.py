"""A round through a shared folder: a network share, a synced folder, a Git repository.

`folder_layout` lists the files. Every party writes under names of its own, each file once and whole, and overwrites
nothing. So two parties may act at once, and whoever crashed goes on where they stopped. What is posted was saved in the
party's state folder before. What is read in the folder is a stranger's until its length, digest, round, part and
signature pass every check; a file that fails is named and left out.
"""
