package countermeasure

import (
	"cmp"
	"context"
	"fmt"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/sqltable"
)

// Protocol is the name of a protocol in the journal.
type Protocol string

// The protocols.
const (
	Saga     Protocol = "saga" // steps and undos: others see effects that may be undone
	TCC      Protocol = "tcc"  // holds, then confirmations: others see the holds
	TwoPhase Protocol = "2pc"  // locks until the decision: others see no effects
)

// ByValue chooses how a transaction is coordinated by its risk: the by-value countermeasure. Use
// one for each type of transaction. The unit of risk is the caller's: cents, guests, anything
// that can be counted.
//
// The zero value chooses two-phase commit for any risk above 0.
type ByValue struct {
	// Limit is the highest risk for Below, 0 or more.
	Limit int64
	// Below is the protocol for a risk up to Limit; empty means Saga.
	Below Protocol
	// Above is the protocol for a higher risk; empty means TwoPhase.
	Above Protocol
	// Name is the table of [ByValue.Decide], or schema.table; empty means
	// "interlock_by_value". It is trusted: never take it from a request.
	Name string
}

// A Decision is the protocol of one transaction, and the reason. Store it with the transaction.
type Decision struct {
	Protocol Protocol `json:"protocol"`
	Risk     int64    `json:"risk"`
	Limit    int64    `json:"limit"` // at the time of the decision
}

// Type returns the transaction's type in the journal, "protocol:name".
func (d Decision) Type(name string) string { return string(d.Protocol) + ":" + name }

// String returns the decision and its reason.
func (d Decision) String() string {
	relation := "does not exceed"
	if d.Risk > d.Limit {
		relation = "exceeds"
	}
	return fmt.Sprintf("%s, since a risk of %d %s %d", d.Protocol, d.Risk, relation, d.Limit)
}

// Choose decides, as a function of b and risk alone. A negative risk or Limit, or an unknown
// protocol, is a Bug.
func (b ByValue) Choose(risk int64) (Decision, error) {
	const op = "choose protocol"
	d := Decision{Protocol: cmp.Or(b.Below, Saga), Risk: risk, Limit: b.Limit}
	above := cmp.Or(b.Above, TwoPhase)
	if risk < 0 || b.Limit < 0 {
		return Decision{}, failure.Bug(op, "", "a risk of %d, and a limit of %d: neither is below 0", risk, b.Limit)
	}
	for _, p := range []Protocol{d.Protocol, above} {
		if p != Saga && p != TCC && p != TwoPhase {
			return Decision{}, failure.Bug(op, string(p), "unknown protocol")
		}
	}
	if risk > b.Limit {
		d.Protocol = above
	}
	return d, nil
}

// A RiskError reports that the transaction was decided before, for another risk. It is Definite.
type RiskError struct {
	Transaction string
	Decision    Decision // the recorded one
	Risk        int64    // of this call
}

// Error names the transaction and both risks.
func (e *RiskError) Error() string {
	return fmt.Sprintf("transaction %q was decided for a risk of %d, and now has one of %d", e.Transaction, e.Decision.Risk, e.Risk)
}

// ErrorKind returns [interlock.Definite].
func (e *RiskError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// Decide is [ByValue.Choose], once for each transaction. The first decision is recorded in the
// caller's transaction and returned by all later calls, also if limits and protocols have
// changed. So a restarted transaction is coordinated as before. Another risk than the first is a
// [RiskError]. It costs one statement.
func (b ByValue) Decide(ctx context.Context, db driver.SQL, transaction string, risk int64) (Decision, error) {
	const op = "decide protocol"
	if err := driver.CheckName(op, "a transaction", transaction, driver.MaxTransaction); err != nil {
		return Decision{}, err
	}
	d, err := b.Choose(risk)
	if err != nil {
		return d, err
	}
	s, err := b.open(op, transaction, db)
	if err != nil {
		return Decision{}, err
	}
	_, err = s.Row(ctx, `insert into {decisions} (id, protocol, risk, risk_limit) values (?, ?, ?, ?)
		{or id} id = {new id}
		returning protocol, risk, risk_limit`,
		[]any{transaction, string(d.Protocol), d.Risk, d.Limit}, (*string)(&d.Protocol), &d.Risk, &d.Limit)
	switch {
	case err != nil:
		return Decision{}, err
	case d.Risk != risk:
		return Decision{}, &RiskError{Transaction: transaction, Decision: d, Risk: risk}
	}
	return d, nil
}

// Forget removes the decision of a transaction that has ended and will not be restarted.
func (b ByValue) Forget(ctx context.Context, db driver.SQL, transaction string) error {
	s, err := b.open("forget decision", transaction, db)
	if err == nil {
		_, err = s.Exec(ctx, `delete from {decisions} where id = ?`, transaction)
	}
	return err
}

// Create creates the table, unless it exists. Several processes may call it at once. It takes effect when
// the transaction commits; on MariaDB it takes effect at once, and commits the statements before it.
func (b ByValue) Create(ctx context.Context, db driver.SQL) error {
	s, err := b.open("create table of decisions", "", db)
	if err != nil {
		return err
	}
	return s.Create(ctx,
		`create table if not exists {decisions} (
			id {name 512} not null primary key,
			protocol {word 16} not null,
			risk bigint not null,
			risk_limit bigint not null){maria  engine = InnoDB}`)
}

var decisionTables = sqltable.Layout{Part: "byvalue", Default: "interlock_by_value", Tables: map[string]string{"decisions": ""}}

func (b ByValue) open(op, transaction string, db driver.SQL) (sqltable.Tables, error) {
	return decisionTables.Open(op, transaction, db, b.Name)
}
