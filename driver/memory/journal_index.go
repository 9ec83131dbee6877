package memory

import (
	"slices"
	"time"

	"github.com/interlock-dev/interlock/driver"
)

// The indexes of a journal. With them, finding due or forgettable transactions takes time
// only for these. Callers hold the mutex.

// schedule adds an unfinished transaction to the index of its shard.
func (j *Journal) schedule(t *transaction) {
	due := j.unfinished[t.head.Shard]
	at, _ := slices.BinarySearchFunc(due, t.head, isDue)
	j.unfinished[t.head.Shard] = slices.Insert(due, at, t)
}

// unschedule removes it before its head changes.
func (j *Journal) unschedule(t *transaction) {
	due := j.unfinished[t.head.Shard]
	if at, found := slices.BinarySearchFunc(due, t.head, isDue); found {
		j.unfinished[t.head.Shard] = slices.Delete(due, at, at+1)
	}
}

func isDue(t *transaction, h driver.Head) int { return byDue(t.head, h) }

// keeping is a payload and a time at which it was stored.
type keeping struct {
	transaction, sum string
	at               time.Time
}

func (j *Journal) keep(k keeping, data []byte) {
	if j.payloads[k.transaction] == nil {
		j.payloads[k.transaction] = map[string]payload{}
	}
	j.payloads[k.transaction][k.sum] = payload{data, k.at}
	j.kept = append(j.kept, k)
}

// remove removes an ended transaction, with its payloads from before that time.
func (j *Journal) remove(id string, before time.Time) {
	delete(j.transactions, id)
	for sum, p := range j.payloads[id] {
		if p.kept.Before(before) {
			j.drop(id, sum)
		} else {
			j.kept = append(j.kept, keeping{id, sum, p.kept})
		}
	}
}

// sweep removes payloads that were stored before that time and whose transaction does
// not exist. Those of existing transactions are removed by remove.
func (j *Journal) sweep(before time.Time) {
	n := 0
	for ; n < len(j.kept) && j.kept[n].at.Before(before); n++ {
		k := j.kept[n]
		p, found := j.payloads[k.transaction][k.sum]
		if found && p.kept.Equal(k.at) && j.transactions[k.transaction] == nil {
			j.drop(k.transaction, k.sum)
		}
	}
	j.kept = j.kept[n:]
}

func (j *Journal) drop(id, sum string) {
	if delete(j.payloads[id], sum); len(j.payloads[id]) == 0 {
		delete(j.payloads, id)
	}
}
