package fence

import (
	"fmt"
	"net/http"

	"github.com/dlock-go/dlock"
)

// Header is the name of the header that SetHeader sets.
const Header = "Dlock-Fence"

// SetHeader puts the Stamps of a request into its header, in place of any that are there.
func SetHeader(h http.Header, stamps ...Stamp) {
	h.Del(Header)
	for _, s := range stamps {
		h.Add(Header, s.String())
	}
}

// FromHeader returns the Stamp of key that SetHeader has set. The error matches [dlock.ErrInvalid]
// if there is none or more than one, or if a Stamp cannot be read. A handler then answers
// [http.StatusPreconditionRequired] (428).
//
// The key is that of the resource, and is known to the handler. So a Stamp of another key, which
// would be checked against another row, does not help.
func FromHeader(h http.Header, key string) (Stamp, error) {
	var found []Stamp
	for _, text := range h.Values(Header) {
		var s Stamp
		if err := s.UnmarshalText([]byte(text)); err != nil {
			return Stamp{}, err
		}
		if s.Key == key {
			found = append(found, s)
		}
	}
	if len(found) != 1 {
		return Stamp{}, fmt.Errorf("fence: %w header: %d stamps of key %q, not 1", dlock.ErrInvalid, len(found), key)
	}
	return found[0], nil
}
