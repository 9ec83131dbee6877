// Command booking books a room and a seat on a flight, both or none. Rooms are in
// PostgreSQL and seats in MariaDB, and each booking is a TCC transaction over the two.
//
// It does not isolate holds: others see that less is left, even if the booking is then
// cancelled. Time alone frees nothing: a participant with an expired hold asks for the
// decision, and if there is none, that question decides to cancel. trip.go shows the
// pattern; the guard of each participant is its table of holds.
//
//	booking -postgres postgres://me@127.0.0.1/test -mariadb 'me@tcp(127.0.0.1:3306)/test'
//
// It offers two rooms and three seats in tables that begin with trip_, and books them.
// With another -season it does so again.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/interlock-dev/interlock/txn/tcc"
)

func main() {
	var s settings
	flag.StringVar(&s.postgres, "postgres", "postgres://127.0.0.1/test", "`URL` of the hotel's database")
	flag.StringVar(&s.mariadb, "mariadb", "root@tcp(127.0.0.1:3306)/test", "`DSN` of the airline's database")
	flag.DurationVar(&s.hold, "hold", 10*time.Second, "how long something is held for a booking that is not decided")
	season := flag.String("season", "2026", "the `name` of what is booked")
	patience := flag.Duration("patience", time.Minute, "how long all of it may take")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, *patience)
	defer cancel()
	if err := travel(ctx, s, *season, os.Stdout); err != nil {
		log.Fatal("booking: ", err)
	}
}

// travel books until nothing is left.
func travel(ctx context.Context, s settings, season string, out io.Writer) error {
	a, err := open(ctx, s)
	if err != nil {
		return err
	}
	defer a.close()
	room, seat := "room/"+season, "seat/"+season
	if err := errors.Join(a.rooms.offer(ctx, room, 2), a.seats.offer(ctx, seat, 3)); err != nil {
		return err
	}
	// A program holds a room for three seconds, and dies before any decision.
	err = a.abandoned(ctx, "trip/"+season+"/ghost", room, 3*time.Second)
	repeated := errors.Is(err, tcc.ErrCancelled) // an earlier run has ended with this season
	switch {
	case err == nil:
		fmt.Fprintln(out, "ghost: holds a room, and is gone")
	case !repeated:
		return err
	}
	for _, who := range []string{"ann", "bob"} {
		if err := a.tell(ctx, season, who, out); err != nil {
			return err
		}
	}
	if err := a.rooms.until(ctx, room, func(l tcc.Level) bool { return l.Held == 0 }); err != nil {
		return err
	}
	if !repeated {
		fmt.Fprintln(out, "ghost: its time was over, the sweeper has asked, and the room is free")
	}
	for _, who := range []string{"ghost", "eve", "joe"} {
		if err := a.tell(ctx, season, who, out); err != nil {
			return err
		}
	}
	rooms, err := a.rooms.level(ctx, room)
	seats, err2 := a.seats.level(ctx, seat)
	fmt.Fprintf(out, "%d of %d rooms and %d of %d seats are sold\n", rooms.Sold, rooms.Capacity, seats.Sold, seats.Capacity)
	return errors.Join(err, err2)
}

// tell books, waits until the outcome is visible to all, and prints it.
func (a *agency) tell(ctx context.Context, season, who string, out io.Writer) error {
	outcome, err := a.book(ctx, "trip/"+season+"/"+who, "room/"+season, "seat/"+season)
	if err == nil || errors.Is(err, tcc.ErrCancelled) {
		outcome, err = a.bookings.Wait(ctx, outcome.ID)
	}
	switch {
	case errors.Is(err, tcc.ErrCancelled):
		fmt.Fprintf(out, "%s: %s: %s\n", who, outcome.State, outcome.Reason)
	case err != nil:
		return err // it may be decided: a repetition is the same booking
	default:
		fmt.Fprintf(out, "%s: %s\n", who, outcome.State)
	}
	return nil
}
