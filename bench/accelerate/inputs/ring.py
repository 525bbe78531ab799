"""A ring of 16 cells that pass a spike on: `ring.py MILLISECONDS`."""

import sys

from neuron import h

h.nrnmpi_init()
pc = h.ParallelContext()
n, tstop = 16, float(sys.argv[-1])
me, size = int(pc.id()), int(pc.nhost())
cells = {}
for gid in range(me, n, size):
    soma = h.Section(name=f"soma{gid}")
    soma.L = soma.diam = 12
    soma.insert("hh")
    syn = h.ExpSyn(soma(0.5))
    syn.tau = 2
    pc.set_gid2node(gid, me)
    pc.cell(gid, h.NetCon(soma(0.5)._ref_v, None, sec=soma))
    cells[gid] = (soma, syn)
cons, times, gids = [], h.Vector(), h.Vector()
for gid, (_, syn) in cells.items():
    con = pc.gid_connect((gid - 1) % n, syn)
    con.weight[0], con.delay = 0.05, 1
    cons.append(con)
    pc.spike_record(gid, times, gids)
if 0 in cells:
    stim = h.NetStim()
    stim.number, stim.start = 1, 0
    con = h.NetCon(stim, cells[0][1])
    con.weight[0], con.delay = 0.05, 1
    cons.append(con)
pc.set_maxstep(10)
h.finitialize(-65)
pc.psolve(tstop)
found = pc.py_gather([(t, int(g)) for t, g in zip(times, gids, strict=True)], 0)
if me == 0:
    spikes = sorted(s for part in found for s in part)
    print("spikes", len(spikes), "last", spikes[-1])
pc.barrier()
pc.done()
h.quit()
