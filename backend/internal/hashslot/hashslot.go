// Package hashslot computes the hash slots of Redis Cluster.
package hashslot

import (
	"strings"
	"sync"
)

// Number is how many slots there are.
const Number = 16384

// Of returns the slot of a key: the CRC16 of the key, or of
// its hash tag if it has one, modulo 16,384. See "Redis cluster specification",
// keys distribution model.
func Of(key string) int {
	if _, rest, ok := strings.Cut(key, "{"); ok {
		if tag, _, ok := strings.Cut(rest, "}"); ok && tag != "" {
			key = tag
		}
	}
	return int(crc16(key)) % Number
}

// crc16 is CRC-16/XMODEM: polynomial 0x1021, initial value 0.
func crc16(s string) uint16 {
	table := crcTable()
	var crc uint16
	for i := range len(s) {
		crc = crc<<8 ^ table[byte(crc>>8)^s[i]]
	}
	return crc
}

var crcTable = sync.OnceValue(func() *[256]uint16 {
	var table [256]uint16
	for i := range table {
		crc := uint16(i) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
		table[i] = crc
	}
	return &table
})

const (
	tagLength   = 3
	tagAlphabet = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
)

// Tags returns one hash tag for each slot: the first string of three characters, in the order of 0-9, A-Z, a-z, that
// is in the slot. The table must not be changed: names that all clients must agree on are made of it.
var Tags = sync.OnceValue(func() *[Number]string {
	var table [Number]string
	var tag [tagLength]byte
	for i := range len(tagAlphabet) * len(tagAlphabet) * len(tagAlphabet) {
		n := i
		for j := tagLength - 1; j >= 0; j-- {
			tag[j] = tagAlphabet[n%len(tagAlphabet)]
			n /= len(tagAlphabet)
		}
		if slot := Of(string(tag[:])); table[slot] == "" {
			table[slot] = string(tag[:])
		}
	}
	return &table
})
