// Package choreography runs sagas without a coordinator: services react to each other's events,
// and a tracker that reads the same events knows the state of each saga. It does not isolate
// sagas, and does not deliver or order messages. If a service works without a [Participant], the
// tracker's reports can be wrong.
//
//	var order = &choreography.Definition{Name: "order", Topic: "orders", Cancelled: "order cancelled", Steps: []choreography.Step{
//		{Done: "order placed", Undone: "order closed"},
//		{Done: "stock reserved", Undone: "stock released", Failed: "stock missing"},
//	}}
//
//	stock := choreography.Participant{Definition: order, Step: "stock reserved", Outbox: box, Barrier: barriers}
//	// in the transaction that handles a message:
//	switch e, ok := order.Read(m.QueueMessage); {
//	case ok && e.Name == "order placed":
//		err = stock.Do(ctx, postgres.Tx(tx), e, reserve) // emits "stock reserved" or "stock missing"
//	case ok && order.Undoes(e.Name):
//		err = stock.Undo(ctx, postgres.Tx(tx), e, release) // emits "stock released"
//	}
//
// # Events
//
// An event happens at most once in a saga. Its headers, set by [Definition.Message], are its saga
// (the correlation id), its name, and the event that caused it (the causation id). An event counts
// as happened if it, or an event that it caused, arrives. A message can be lost, repeated, late or
// out of order.
//
// # Services
//
// A [Participant] guards each effect by txn/barrier, in one transaction with the event that
// reports it. A repeated event has no second effect, but emits the same event again. After an
// undo, a late event that would do the step has no effect. Every service answers every event that
// undoes the saga, even if it has done nothing: the answer means that the step is not done and
// will not be done.
//
// # The tracker
//
// A [Tracker] keeps one row for each saga, and the events of sagas. The state of a saga depends on
// the set of its events alone, not on their order or number. A saga is [Compensated] only if every
// step that did not fail has reported its undo, so that later events change nothing.
//
// A saga without a new event for [Definition].Stalled is stalled. [Tracker.Reconcile] finds it,
// and emits its events again or cancels it. Called every d, it finds each stalled saga
// within Stalled + d, and each contradictory one within d of its last event.
//
// Sagas with compensation go back to Garcia-Molina and Salem (Sagas, 1987); choreography is the
// term of Richardson (Microservices Patterns, 2018, chapter 4).
package choreography
