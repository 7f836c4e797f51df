package museum

var releasing = []Exhibit{
	// DEL without comparing. Seen: a well-known recipe. Harm: a late holder frees the lock of its successor, and a third client
	// takes it.
	{Name: "plainDelete", Cases: names{"ReleaseByStranger", "ReleaseTwice", "ReleaseAfterExpiry",
		"TokensCompareWhole", "LateDuplicate"},
		Network: says{"LateDuplicateOverNetwork": `must still hold the key|Release.*: held = true; want false`},
		polls:   true, release: func(d *db, q question) bool { return d.del(q.Key) }},
	// GET, compare, then DEL. Seen: a well-known recipe. Harm: the lease ends between the two, and the successor's lock is
	// deleted.
	{Name: "getThenDelete", Cases: names{"ReleaseAfterExpiry", "ReleaseCrossesTakeover"}, BeyondModel: true,
		polls: true, on: names{"Release"}, call: looksFirst(func(d *db, q question) bool { return d.del(q.Key) })},
	// A release is always confirmed. Harm: a holder whose lease ended while it worked does not hear of it.
	{Name: "trueForEver", Cases: names{"ReleaseByStranger", "ReleaseTwice", "ReleaseAfterExpiry"},
		near: true, release: func(d *db, q question) bool { return d.free(q) || true }},
	// A release names the session, not the acquisition. The client remembers which caller holds the key. Seen:
	// etcd-io/etcd#22082. Harm: an unlock that is retried deletes the lock that another caller of the session has by then.
	{Name: "sessions", Cases: names{"ReleaseTwice"},
		polls: true, on: names{"TryAcquire", "Renew", "Release"}, call: func(r request) (answer, error) {
			token := r.Token
			r.Token = r.name
			if r.Call != "TryAcquire" {
				return r.send()
			}
			return eval(r, func(d *db) (a answer) {
				if holder, _ := r.notes.Load(r.Key); d.holds(r.question) && holder != token {
					a.Remaining = d.pTTL(r.Key)
				} else if a.Attempt = d.try(r.question); a.Acquired {
					r.notes.Store(r.Key, token)
				}
				a.Holder = ""
				return a
			})
		}},
	// A release ends everything that its token holds. Seen: a trial of the suite. Harm: a lease that nobody released has ended.
	{Name: "endsTheSession", Cases: names{"TokenHoldsManyKeys"},
		release: func(d *db, q question) bool {
			for key := range d.data {
				if key != q.Key && d.get(key) == q.Token {
					d.del(key)
				}
			}
			return d.free(q)
		}},
	// A release marks the row as released, and an attempt does not look at the mark. Harm: the key is held until its TTL has
	// passed.
	{Name: "onlyMarks", Cases: names{"ReleaseFrees"},
		polls: true, release: func(d *db, q question) bool {
			held := d.holds(q) && d.get("released "+q.Key) != q.Token
			return held && d.set("released "+q.Key, q.Token, d.pTTL(q.Key))
		}},
}
