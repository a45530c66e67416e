import sys,time,json,statistics,uuid,threading
from collections import Counter
from benchmarks.scene import scene
from benchmarks.lateness import *
from worker.queue.scripts import scripts
import hashlib
names={hashlib.sha1(s.text.encode()).hexdigest():s.name for s in scripts()}
n,rate,seconds=int(sys.argv[1]),float(sys.argv[2]),float(sys.argv[3])
with scene() as stage:
    client=stage.client(); client.flushall(); queue=DelayQueue(client,QUEUE)
    record=stage.folder/'late.jsonl'
    env={**stage.env,'LATENESS_RECORD':str(record)}
    ps=[python(["worker","run","benchmarks.noop:flows"],env,stage.folder/f'n{i}.log') for i in range(n)]
    try:
        wait_until(lambda: len(queue.workers())==n,'all',seconds=200,every=0.5)
        time.sleep(24)
        mon=client.monitor(); got=[]
        def listen():
            with mon:
                for c in mon.listen():
                    if c['client_type']=='lua':
                        if c['command'].startswith('PUBLISH'): got.append((c['time'],'lua',c['command'][-200:]))
                        continue
                    w=c['command'].split()
                    if w[0]=='EVALSHA': got.append((c['time'],c['client_port'],names.get(w[1],w[1])))
        threading.Thread(target=listen,daemon=True).start()
        due=[round((time.time()+3)*1000+k*1000/rate) for k in range(round(rate*seconds))]
        queue.schedule_many((str(uuid.uuid4()),d,b"") for d in due)
        while client.zcard(queue.keys.scheduled) or client.zcard(queue.keys.leased): time.sleep(0.5)
        first=due[0]/1000
        inside=[g for g in got if first-0.05<=g[0]<=due[-1]/1000+0.1]
        c=Counter(g[2] for g in inside if g[1]!='lua')
        print({k:round(v/len(due),2) for k,v in c.items()}, 'pub',round(sum(g[1]=='lua' for g in inside)/len(due),2))
        mid=due[len(due)//2]/1000
        for g in got:
            if mid-0.02<=g[0]<=mid+0.02+1.0/rate*2: print(round(1000*(g[0]-mid),2),g[1],g[2])
    finally:
        for p in ps: p.stop()
