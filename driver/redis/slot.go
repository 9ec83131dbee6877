package redis

import (
	"strconv"
	"strings"
	"sync"
)

// slots is how many hash slots a Redis Cluster has.
const slots = 16384

// slotOf returns the hash slot of a key (Redis Cluster specification, "Hash tags"):
// that of the text between its first brace and the next closing one, unless that is
// empty.
func slotOf(key string) int {
	if _, rest, ok := strings.Cut(key, "{"); ok {
		if tag, _, ok := strings.Cut(rest, "}"); ok && tag != "" {
			key = tag
		}
	}
	return int(crc16(key)) % slots
}

// crc16 is CRC-16/XMODEM: polynomial 0x1021, start 0.
func crc16(s string) uint16 {
	var crc uint16
	for i := range len(s) {
		crc = crc<<8 ^ crcTable[byte(crc>>8)^s[i]]
	}
	return crc
}

var crcTable = func() (table [256]uint16) {
	for i := range table {
		crc := uint16(i) << 8
		for range 8 {
			carry := crc & 0x8000
			crc <<= 1
			if carry != 0 {
				crc ^= 0x1021
			}
		}
		table[i] = crc
	}
	return table
}()

// tagTable maps every hash slot to a short text: the first of "0", "1", … "z",
// "10", … in base 36 that hashes to it, so that all processes agree. It is filled
// only as far as needed.
type tagTable struct {
	mu    sync.Mutex
	tried int64
	found [slots]string
}

var tags tagTable

func (t *tagTable) of(slot int) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.found[slot] == "" {
		tag := strconv.FormatInt(t.tried, 36)
		if s := slotOf(tag); t.found[s] == "" {
			t.found[s] = tag
		}
		t.tried++
	}
	return t.found[slot]
}
