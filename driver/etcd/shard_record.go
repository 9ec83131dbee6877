package etcd

import (
	"encoding/json"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/interlock-dev/interlock/driver"
)

// hold is the value of a key that names the branch that changes or has read an item.
type hold struct {
	Transaction string `json:"transaction"`
	Branch      string `json:"branch"`
	Amount      int64  `json:"amount,omitempty"` // what is added to a balance
	Since       int64  `json:"since_us"`
}

func (h hold) xid() driver.XID { return driver.XID{Transaction: h.Transaction, Branch: h.Branch} }

func (h hold) since() time.Time { return recorded(h.Since) }

func readHold(kv *mvccpb.KeyValue) (h hold, err error) {
	if json.Unmarshal(kv.Value, &h) != nil || h.xid().Check() != nil {
		return hold{}, fmt.Errorf("key %q is not a reservation", kv.Key)
	}
	return h, nil
}

// doubt holds the pending changes of a prepared branch. Items are bytes, because
// JSON would change text that is not UTF-8.
type doubt struct {
	Since  int64        `json:"since_us"`
	Writes []doubtWrite `json:"writes,omitempty"`
	Reads  [][]byte     `json:"reads,omitempty"` // items
}

// doubtWrite is an item and its new content; none if it is removed.
type doubtWrite struct {
	Item   []byte `json:"item"`
	Text   []byte `json:"text,omitempty"`
	Amount int64  `json:"amount,omitempty"`
	Gone   bool   `json:"gone,omitempty"`
}

func readDoubt(kv *mvccpb.KeyValue) (d doubt, err error) {
	if json.Unmarshal(kv.Value, &d) != nil || d.Since == 0 {
		return doubt{}, fmt.Errorf("key %q is not a prepared branch", kv.Key)
	}
	return d, nil
}

// ended is the marker of a branch.
type ended struct {
	Committed bool  `json:"committed"`
	At        int64 `json:"at_us"`
}

func readEnded(kv *mvccpb.KeyValue) (e ended, err error) {
	if json.Unmarshal(kv.Value, &e) != nil || e.At == 0 {
		return ended{}, fmt.Errorf("key %q is not the marker of a branch", kv.Key)
	}
	return e, nil
}

// recorded converts a time of a record; 0 is the zero time.
func recorded(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us).UTC()
}

// readAmount parses a balance; a missing key means 0.
func readAmount(text []byte) (int64, error) {
	if len(text) == 0 {
		return 0, nil
	}
	n, err := driver.ParseInt(string(text))
	if err != nil || n < 0 {
		return 0, fmt.Errorf("its key does not hold a balance: %.40q", text)
	}
	return n, nil
}
