package deadlock

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
)

const (
	prefix  = "deadlock/"
	behind  = "deadlock0"      // the first key after all with the prefix
	boardID = prefix + "board" // has the name of the board, which no other one has
	version = 2                // of notes

	page = 500 // notes read at once
)

// A note is what a task publishes about one resource that it awaits, or that it holds and
// others await. Only the process of the task writes it.
type note struct {
	Version int      `json:"version"`
	Task    string   `json:"task"` // its name
	Awaits  string   `json:"awaits,omitempty"`
	Held    string   `json:"held,omitempty"` // set in mode WaitDie
	Holds   []string `json:"holds"`          // for people
	Links   []link   `json:"links"`          // the first link belongs to the task
}

// sights is what was last read from each board.
type sights map[Board]*sight

type sight struct {
	id       string // of the board; empty if not known
	notes    []driver.KeyValue
	empty    bool            // the board has no note of this detector
	seen     map[string]seen // by key
	failures int
	resting  boottime.Instant // until then
}

// seen is the revision of a note and when it was first seen.
type seen struct {
	revision int64
	since    boottime.Instant
	reported bool // it is invalid
}

func (n note) encode() []byte {
	data, err := json.Marshal(n)
	if err != nil {
		panic(err) // strings and numbers
	}
	return data
}

// parse decodes a note and checks that the first link, and no other, belongs to its task.
func parse(data []byte) (n note, err error) {
	if err = json.Unmarshal(data, &n); err != nil {
		return n, err
	}
	if n.Version != version {
		return n, fmt.Errorf("version %d is not known, this is version %d", n.Version, version)
	}
	if len(n.Links) > maxLinks+1 || (n.Awaits == "") == (n.Held == "") {
		return n, errors.New("it has too many links, or not one resource")
	}
	if first := slices.IndexFunc(n.Links, func(l link) bool { return l.Hops == 0 }); first != 0 {
		return n, errors.New("the first link is not its task's")
	}
	for _, l := range n.Links[1:] {
		if l.Hops < 1 || l.Hops > maxHops {
			return n, fmt.Errorf("a link has %d hops", l.Hops)
		}
	}
	return n, nil
}

// read reads all notes of a board and records how long each has been unchanged.
func (s *sight) read(ctx context.Context, board Board) error {
	s.notes, s.empty, s.id = nil, false, ""
	for from := prefix; ; {
		some, err := board.Scan(ctx, from, behind, page)
		if err != nil {
			return err
		}
		s.notes = append(s.notes, some...)
		if len(some) < page {
			break
		}
		from = some[page-1].Key + "\x01"
	}
	if i := slices.IndexFunc(s.notes, func(kv driver.KeyValue) bool { return kv.Key == boardID }); i >= 0 {
		s.id = string(s.notes[i].Value)
		s.notes = slices.Delete(s.notes, i, i+1)
	}
	now := boottime.Now()
	before := s.seen
	s.seen = map[string]seen{}
	for _, kv := range s.notes {
		same := before[kv.Key]
		if same.revision != kv.Revision {
			same = seen{revision: kv.Revision, since: now}
		}
		s.seen[kv.Key] = same
	}
	return nil
}

// write makes this detector's notes equal to wanted and removes notes of crashed processes. If
// another process changes a note meanwhile, the next round sees it.
func (s *sight) write(ctx context.Context, board Board, own string, wanted map[string][]byte) error {
	var swaps []driver.Swap
	noted := map[string]bool{}
	s.empty = true
	now := boottime.Now()
	for _, kv := range s.notes {
		noted[kv.Key] = true
		data, age := wanted[kv.Key], now.Sub(s.seen[kv.Key].since)
		mine := strings.HasPrefix(kv.Key, own)
		s.empty = s.empty && !mine
		switch {
		case mine && data == nil, !mine && age > departed:
			swaps = append(swaps, driver.Swap{Key: kv.Key, Revision: kv.Revision, Delete: true})
		case mine && (age > refresh || !bytes.Equal(data, kv.Value)):
			swaps = append(swaps, driver.Swap{Key: kv.Key, Revision: kv.Revision, Value: data})
		}
	}
	for key, data := range wanted {
		if !noted[key] {
			swaps = append(swaps, driver.Swap{Key: key, Value: data})
		}
	}
	for _, swap := range swaps {
		if _, err := board.Swap(ctx, swap); err != nil {
			return err
		}
	}
	return nil
}
