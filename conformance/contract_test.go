package conformance

import (
	"flag"
	"fmt"
	"hash"
	"hash/adler32"
	"hash/crc32"
	"hash/fnv"
	"math/bits"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const contractPage = "../docs/contract.md"

var rewrite = flag.Bool("update", false, "write the page that is generated")

//go:generate go test -run TestContractPage -update .

// TestContractPage compares the page of the contract with the cases; with -update it writes the page.
func TestContractPage(t *testing.T) {
	want := contractText()
	if *rewrite {
		require.NoError(t, os.WriteFile(contractPage, []byte(want), 0o644))
	}
	got, err := os.ReadFile(contractPage)
	require.NoError(t, err)
	assert.Equal(t, want, string(got), "%s is out of date: go generate ./conformance", contractPage)
}

const contractIntroduction = `# The contract of a Locker

What a backend promises. The case of that name in the [conformance suite](../conformance) checks each
clause. The [package documentation](../doc.go) explains the words.

**The short path.** These clauses make a lock, and a new backend makes them pass first: Exclusion, HeldIsUntouched and
SameTokenAgain; RenewExtends, RenewNeverShortens, RenewByStranger and RenewAfterExpiry; ReleaseFrees, ReleaseByStranger
and ReleaseAfterExpiry; Expiry and NotBefore. Then come FenceRises, NoEffect and LostReply: what a holder may rely on when
something fails. The others follow.

A backend may lack a queue, fences (each is 0), BatchRenewer, SetAcquirer or Inspector. The suite finds out, or the
Harness says so, and it skips these cases with the reason. Nothing else is optional.

Generated from the files named below: go generate ./conformance
`

func contractText() string {
	var page strings.Builder
	page.WriteString(contractIntroduction)
	for _, c := range chapters {
		subject := c.subject()
		fmt.Fprintf(&page, "\n## %s\n\n%s … ([%s](../conformance/%[3]s))\n\n", c.title, subject, c.file())
		for _, c := range c.cases {
			fmt.Fprintf(&page, "- **%s**: %s\n", c.name, strings.TrimPrefix(c.clause.text, subject+" "))
		}
	}
	return page.String()
}

// subject returns the words with which all clauses of the chapter begin.
func (c chapter) subject() string {
	first := strings.Fields(c.cases[0].clause.text)
	for n := len(first); ; n-- {
		subject := strings.Join(first[:n], " ")
		if !slices.ContainsFunc(c.cases, func(c testCase) bool { return !strings.HasPrefix(c.clause.text, subject+" ") }) {
			return subject
		}
	}
}

// Each chapter's table stands in one file, and each clause is a sentence or several.
func TestChapters(t *testing.T) {
	names := make(map[string]bool)
	for _, chapter := range chapters {
		for _, c := range chapter.cases {
			assert.Equal(t, chapter.file(), c.clause.file(), c.name)
			assert.Regexp(t, `^(A backend|A BatchRenewer|A SetAcquirer|An Inspector) .*\.$`, c.clause.text, c.name)
			assert.False(t, names[c.name], "two cases are named %s", c.name)
			names[c.name] = true
		}
	}
}

// hashes are those of which collisions has a pair.
var hashes = map[string]func(string) uint32{
	"CRC-32":            func(key string) uint32 { return crc32.ChecksumIEEE([]byte(key)) },
	"CRC-32C":           func(key string) uint32 { return crc32.Checksum([]byte(key), crc32.MakeTable(crc32.Castagnoli)) },
	"Adler-32":          func(key string) uint32 { return adler32.Checksum([]byte(key)) },
	"FNV-1":             func(key string) uint32 { return sum(fnv.New32(), key) },
	"FNV-1a":            func(key string) uint32 { return sum(fnv.New32a(), key) },
	"FNV-1, 64 bits":    func(key string) uint32 { return sum(fnv.New64(), key) },
	"FNV-1a, 64 bits":   func(key string) uint32 { return sum(fnv.New64a(), key) },
	"Java":              func(key string) uint32 { return fold(key, 0, func(h, b uint32) uint32 { return h*31 + b }) },
	"djb2":              func(key string) uint32 { return fold(key, 5381, func(h, b uint32) uint32 { return h*33 + b }) },
	"djb2, xor":         func(key string) uint32 { return fold(key, 5381, func(h, b uint32) uint32 { return h*33 ^ b }) },
	"sdbm":              func(key string) uint32 { return fold(key, 0, func(h, b uint32) uint32 { return h*65599 + b }) },
	"Jenkins, bytewise": jenkins,
	"MurmurHash3":       murmur3,
}

// sum is the lower half of a sum, or all of it if that has 32 bits.
func sum(h hash.Hash, key string) (low uint32) {
	h.Write([]byte(key))
	for _, b := range h.Sum(nil) {
		low = low<<8 | uint32(b)
	}
	return low
}

func fold(key string, h uint32, f func(h, b uint32) uint32) uint32 {
	for i := range len(key) {
		h = f(h, uint32(key[i]))
	}
	return h
}

func jenkins(key string) uint32 {
	h := fold(key, 0, func(h, b uint32) uint32 {
		h += b
		h += h << 10
		return h ^ h>>6
	})
	h += h << 3
	h ^= h >> 11
	return h + h<<15
}

func murmur3(key string) (h uint32) {
	scramble := func(k uint32) uint32 { return bits.RotateLeft32(k*0xcc9e2d51, 15) * 0x1b873593 }
	rest := key
	for ; len(rest) >= 4; rest = rest[4:] {
		k := uint32(rest[0]) | uint32(rest[1])<<8 | uint32(rest[2])<<16 | uint32(rest[3])<<24
		h = bits.RotateLeft32(h^scramble(k), 13)*5 + 0xe6546b64
	}
	var k uint32
	for i := range len(rest) {
		k |= uint32(rest[i]) << (8 * i)
	}
	h ^= scramble(k)
	h ^= uint32(len(key))
	h = (h ^ h>>16) * 0x85ebca6b
	h = (h ^ h>>13) * 0xc2b2ae35
	return h ^ h>>16
}

// Two keys of each pair are the same to the hash, and stay so with what follows.
func TestCollisions(t *testing.T) {
	assert.Equal(t, uint32(0x248bfa47), murmur3("hello"))
	assert.Equal(t, uint32(0xca2e9442), jenkins("a"))
	assert.Len(t, hashes, len(collisions))
	for _, c := range collisions {
		f := hashes[c.hash]
		for _, end := range []string{"", "x", "conformance-ABCDEFGHIJKL"} {
			assert.NotEqual(t, c.one, c.other)
			assert.Equal(t, f(c.one+end), f(c.other+end), "%s of %s and %s", c.hash, c.one+end, c.other+end)
		}
	}
}
