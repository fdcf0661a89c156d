"""Finds known services on this host, for `svcnode init`.

catalog.py   the known services: ports, fingerprint, probe URL
scan.py      tries all ports at the same time
select.py    chooses a probe for each service found
template.py  renders the configuration file
"""
