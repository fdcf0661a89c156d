"""`make mutants`: how many small faults of the source the tests notice.

__main__.py     the command: chooses mutants, judges them in two copies of the tree, writes the results
find.py         all mutants of the source
copies.py       a copy of the tree, in which mutants are written and tests run; reap.py ends what a run leaves behind
coverage.py     which tests reach which mutant; mutant_hits.py records it inside the tests and the processes they start
trial.py        one mutant: runs its tests until one fails
"""
