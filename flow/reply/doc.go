// Package reply lets the sender of a message wait for its result. It does not make the call happen
// at once: the message waits in its queue, and if the wait ends first its outcome is unknown. Call
// again with the same id, or Cancel it.
//
//	handler := reply.Handler(db, reply.Table{}, notifier, func(ctx context.Context, tx pgx.Tx, m queue.Received) ([]byte, error) {
//		return reserve(ctx, tx, m.Payload) // the result, committed with the effects
//	})
//	consumer, err := queue.New(ctx, q, "orders", handler, nil)
//	…
//	caller := reply.NewCaller(db, reply.Table{}, notifier, send)
//	result, err := caller.Call(ctx, queue.Message{ID: "order-7", Key: "order/7", Payload: order})
//
// # Guarantees
//
// The result of a message is a row in the database of its effects, under its id, and is committed
// with them. So the effects happen once, and the result is durable before a caller has it. Each call
// with the id returns the same result, however often the message is sent or delivered. The queue is
// any driver.Queue; it need not be in that database. DESIGN.md explains each loss.
//
// # Ends of a wait
//
// A call whose context ends is Uncertain: the message may be handled later. A repeated call finds
// the result. Cancel decides: afterwards the message has no effects, or has its result.
package reply
