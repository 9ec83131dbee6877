package main

import (
	"context"
	"errors"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock/driver/redis"
	"github.com/interlock-dev/interlock/guard/stock"
	"github.com/interlock-dev/interlock/history"
)

// Two people book the last seat. Each request reads from Redis that the seat is
// free, and then writes its name there. Both report success, and the last write
// wins.
//
// The remedy is to check and write in one step, with a hold that expires while the
// customer pays, and is confirmed afterwards.
var doubleBooking = race{
	name:    "double-booking",
	symptom: "one seat, room or appointment has two owners",
	remedy:  "guard/stock: Store.Hold and Confirm",
	system:  onRedis,
	broken:  booking(bookIfFree),
	fixed:   booking(holdSeat),
	judge:   history.CheckCapacity,
	rule:    history.RuleCapacity,
}

// booking lets all check, and then all write.
func booking(book func(ctx context.Context, s *scene, seat, who string, pause func(string)) (booked bool, err error)) twin {
	return func(ctx context.Context, s *scene) error {
		seat, names := s.name("seat"), s.workers(5)
		s.state(history.OpCapacity, seat, 1)
		var actors []actor
		for _, name := range names {
			actors = append(actors, actor{name, func(ctx context.Context, pause func(string)) error {
				call := s.told.Invoke(history.Event{Lane: name, Op: history.OpTake, Key: seat, Amount: 1})
				booked, err := book(ctx, s, seat, s.name(name), pause)
				if err == nil && !booked {
					call.EndWith(refused("it is taken"))
					return nil
				}
				call.End(err)
				return err
			}})
		}
		return s.act(ctx, s.rounds(2, names), actors...)
	}
}

func bookIfFree(ctx context.Context, s *scene, seat, who string, pause func(string)) (booked bool, err error) {
	err = s.redis.Do(ctx, s.redis.B().Get().Key("race:"+seat).Build()).Error()
	if !rueidis.IsRedisNil(err) {
		return false, err // taken, unless there is an error
	}
	pause("the seat is free") // meanwhile others check
	return true, s.redis.Do(ctx, s.redis.B().Set().Key("race:"+seat).Value(who).Build()).Error()
}

func holdSeat(ctx context.Context, s *scene, seat, who string, pause func(string)) (booked bool, err error) {
	seats := stock.NewStore(redis.NewStock(s.redis, &redis.StockOptions{Prefix: "race:"}), nil)
	if err := seats.Set(ctx, seat, 1); err != nil { // a repeated Set changes nothing
		return false, err
	}
	err = seats.Hold(ctx, who, time.Minute, stock.Line{Item: seat, N: 1})
	if short := new(stock.ShortError); errors.As(err, &short) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	pause("the seat is held") // meanwhile the customer pays
	return true, seats.Confirm(ctx, seat, who)
}
