package failover

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/branchhttp"
)

var errRefused = errors.New("no")

// bank is a participant with accounts and the outcome of each call by its key. It represents a
// foreign service that outlives the coordinators. It is idempotent, answers a repeated call as the
// first one, and refuses a call after its undo.
type bank struct {
	url string

	mu       sync.Mutex
	accounts map[string]int64
	states   map[string]state // by transaction and branch
	wrong    []string         // requests that no participant may receive
}

type state string

const (
	applied state = "applied"
	refused state = "refused"
	undone  state = "undone"
)

// transfer is the input of a saga.
type transfer struct {
	From, To string
	Amount   int64
}

func newBank(t testing.TB, accounts ...string) *bank {
	b := &bank{accounts: map[string]int64{}, states: map[string]state{}}
	for _, a := range accounts {
		b.accounts[a] = 1000
	}
	server := httptest.NewServer(branchhttp.Handler(b.answer))
	t.Cleanup(server.Close)
	b.url = server.URL
	return b
}

func (b *bank) answer(ctx context.Context, input []byte) ([]byte, error) {
	var of transfer
	if err := json.Unmarshal(input, &of); err != nil {
		return nil, err
	}
	c := branch.From(ctx)
	time.Sleep(rand.N(50 * time.Millisecond)) // so that calls are in progress when a coordinator dies
	b.mu.Lock()
	defer b.mu.Unlock()
	key := c.Transaction + " " + c.Branch
	account, amount := of.From, -of.Amount
	if c.Branch == "credit" {
		account, amount = of.To, of.Amount
	}
	if c.Operation == branch.Undo {
		return nil, b.undo(key, account, amount)
	}
	switch b.states[key] {
	case applied:
		return nil, nil
	case refused, undone:
		return nil, branch.Fail(errRefused)
	}
	if b.accounts[account]+amount < 0 || strings.HasPrefix(of.To, "closed") && c.Branch == "credit" {
		b.states[key] = refused
		return nil, branch.Fail(errRefused)
	}
	b.accounts[account] += amount
	b.states[key] = applied
	return nil, nil
}

func (b *bank) undo(key, account string, amount int64) error {
	if strings.HasSuffix(key, " notify") {
		b.wrong = append(b.wrong, key+" is undone after the pivot")
	}
	if b.states[key] == applied {
		b.accounts[account] -= amount
	}
	b.states[key] = undone
	return nil
}

// judge checks that no money was created or lost, and that transfers are complete.
func (b *bank) judge(t *testing.T, ids []string, succeeded map[string]bool) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	sum := int64(0)
	for _, amount := range b.accounts {
		sum += amount
	}
	if want := int64(len(b.accounts)) * 1000; sum != want {
		t.Errorf("%d in all accounts, %d before", sum, want)
	}
	for _, id := range ids {
		debit, credit := b.states[id+" debit"] == applied, b.states[id+" credit"] == applied
		if debit != credit || credit != succeeded[id] {
			t.Errorf("%s: debit %v, credit %v, reported as succeeded: %v", id, debit, credit, succeeded[id])
		}
	}
	for _, w := range b.wrong {
		t.Error(w)
	}
}
