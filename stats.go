package dlock

// Stats is what a [Client] is doing, and has done. The counts since it was made only
// grow.
type Stats struct {
	Leases  int // that are held now
	Waiters int // calls that wait for a key now

	ReleasesOwed    int    // releases that are owed to the store now: see [Lease.Release] and [WithMinHold]
	ReleasesDropped uint64 // owed releases that were given up since there were more than 100,000: their keys stay for up to a TTL

	Lost           uint64 // leases that were lost
	RenewalsFailed uint64 // renewals without an answer, each lease of a batch counted
}

// Stats returns the figures of c and all Clients that were made from it, or it from, by
// [Client.With]. All are of one instant, but for Waiters and RenewalsFailed, which are read
// at about the same time. It is cheap enough to be called once a second.
func (c *Client) Stats() Stats {
	k := c.keeper
	if k == nil {
		return Stats{}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return Stats{
		Leases:          k.leases,
		Waiters:         int(k.waiters.Load()),
		ReleasesOwed:    k.owed.fresh.Len() + k.owed.settled.Len() + k.owed.held.Len(),
		ReleasesDropped: k.owed.dropped,
		Lost:            k.lost,
		RenewalsFailed:  k.renewals.failed.Load(),
	}
}
