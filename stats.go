package dlock

// Stats is what a [Client] does now (the fields of type int), and what it has done since it
// was made (the others, which only grow).
type Stats struct {
	Leases  int // leases that are held
	Waiters int // calls that wait for a key

	// ReleasesOwed counts the releases that are owed, answered or not: see "Unknown
	// outcomes" in the package documentation. A lease that was released before its
	// [WithMinHold] has passed is among them until then. A number that stays high
	// says that the store does not answer, or refuses.
	ReleasesOwed int

	// ReleasesDropped counts owed releases that were given up because there were
	// more than 100,000. Their keys stay taken for up to one TTL.
	ReleasesDropped uint64

	Lost           uint64 // leases that were lost, those included whose Release has found it
	RenewalsFailed uint64 // renewals that failed; one for each lease of a batch that fails
}

// Stats returns the figures of c, together with all Clients that are related to it by
// [Client.With]. All are of one instant, except Waiters and RenewalsFailed, which are read
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
