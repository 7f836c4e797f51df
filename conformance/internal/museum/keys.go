package museum

import (
	"hash/crc32"
	"slices"
	"strconv"
	"strings"

	"github.com/dlock-go/dlock"
)

var keys = []Exhibit{
	// Leases are found by the name key:token, where a:b:c is a and b:c as well as a:b and c. Seen: a trial of the suite. Harm: a
	// stranger renews the lease.
	{Name: "joined", Cases: names{"KeyAndTokenApart"},
		take: tried(func(d *db, q question, a *dlock.Attempt) {
			if a.Acquired {
				d.set("lease "+q.Key+":"+q.Token, q.Key, d.pTTL(q.Key))
			}
		}),
		renew: func(d *db, q question) bool {
			name := "lease " + q.Key + ":" + q.Token
			q.Key = d.get(name)
			q.Token = d.get(q.Key)
			return q.Token != "" && d.extend(q) && d.pExpire(name, d.pTTL(q.Key))
		}},
	// The value is always the same, or the name of the process. Seen: well-known recipes. Harm: everybody releases everybody's
	// lock, or two goroutines of one process hold it at once.
	{Name: "constant", Cases: names{"ReleaseByStranger"},
		polls: true, on: names{"TryAcquire", "Renew", "Release"}, call: before(func(r *request) { r.Token = "locked" }),
		take: func(d *db, q question) (a dlock.Attempt) {
			if d.get(q.Key) == "" {
				a = d.try(q)
			}
			return a
		}},
	{Name: "processName", Cases: names{"Exclusion"},
		polls: true, on: names{"TryAcquire", "Renew", "Release"}, call: before(func(r *request) { r.Token = r.name })},
	// A key is hashed to 32 bits: plumless and buckeroo are the same lock. Seen: advisory locks on the CRC-32 of a name. Harm:
	// clients that lock one key wait for another, now and then.
	{Name: "hashedKeys", Cases: names{"KeysAreIndependent"}, BeyondModel: true,
		call: storedAs(func(key string) string { return strconv.Itoa(int(crc32.ChecksumIEEE([]byte(key)))) })},
	// A part of the key does not count: what follows NUL, as in C; upper and lower case, as in the default collation of MySQL;
	// space around it; or what follows 255 bytes, which the database cuts silently. Harm: two keys become one.
	{Name: "cKeys", Cases: names{"KeysAreIndependent"},
		call: storedAs(func(key string) string { return strings.SplitN(key, "\x00", 2)[0] })},
	{Name: "foldedKeys", Cases: names{"KeysAreIndependent"}, call: storedAs(strings.ToLower)},
	{Name: "trimmedKeys", Cases: names{"KeysAreIndependent"}, call: storedAs(strings.TrimSpace)},
	{Name: "shortKeys", Cases: names{"KeysAreIndependent"},
		call: storedAs(func(key string) string { return key[:min(len(key), 255)] })},
	// The value is the token and a comment: only as many bytes are compared as the caller's token has. Seen: in the source of
	// bsm/redislock, with custom tokens. Harm: user-1 takes the lock of user-10.
	{Name: "prefixes", Cases: names{"TokensCompareWhole"},
		polls: true, take: func(d *db, q question) dlock.Attempt { return d.try(d.asPrefix(q)) },
		renew:   func(d *db, q question) bool { return d.extend(d.asPrefix(q)) },
		release: func(d *db, q question) bool { return d.free(d.asPrefix(q)) }},
}

// storedAs stores keys under other names.
func storedAs(name func(key string) string) func(request) (answer, error) {
	return func(r request) (answer, error) {
		r.Key, r.Batch, r.Set = name(r.Key), slices.Clone(r.Batch), slices.Clone(r.Set)
		for i := range r.Batch {
			r.Batch[i].Key = name(r.Batch[i].Key)
		}
		for i := range r.Set {
			r.Set[i].Key = name(r.Set[i].Key)
		}
		return r.send()
	}
}

// asPrefix returns q with the token of the holder, if that begins with the one of q.
func (d *db) asPrefix(q question) question {
	if holder := d.get(q.Key); strings.HasPrefix(holder, q.Token) {
		q.Token = holder
	}
	return q
}
