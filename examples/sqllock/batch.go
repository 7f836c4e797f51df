package sqllock

import (
	"context"

	"github.com/dlock-go/dlock"
)

// A hold is a token and the key that it holds or would like to.
type hold struct{ key, token string }

// RenewBatch implements [dlock.BatchRenewer] in one statement.
func (l *Locker) RenewBatch(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	results := make([]dlock.RenewResult, len(batch))
	keys, tokens, ttls := make([][]byte, 0, len(batch)), make([][]byte, 0, len(batch)), make([]int64, 0, len(batch))
	for i, r := range batch {
		if results[i].Err = l.check(r.Key, r.Token, r.TTL); results[i].Err == nil {
			keys = append(keys, []byte(r.Key))
			tokens = append(tokens, []byte(r.Token))
			ttls = append(ttls, r.TTL.Milliseconds())
		}
	}
	if len(keys) == 0 {
		return results, ctx.Err()
	}
	renewed, err := l.holds(ctx, l.on(renewBatch), keys, tokens, ttls)
	if err != nil {
		return nil, err
	}
	for i, r := range batch {
		results[i].Held = results[i].Err == nil && renewed[hold{r.Key, r.Token}]
	}
	return results, nil
}

// holds returns the keys and tokens that a statement returns.
func (l *Locker) holds(ctx context.Context, stmt string, args ...any) (map[hold]bool, error) {
	rows, err := l.db.QueryContext(ctx, stmt, args...)
	if err != nil {
		return nil, outcome(err)
	}
	defer rows.Close()
	found := make(map[hold]bool)
	for rows.Next() {
		var key, token []byte
		if err := rows.Scan(&key, &token); err != nil {
			return nil, err
		}
		found[hold{string(key), string(token)}] = true
	}
	return found, outcome(rows.Err())
}
