package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/interlock-dev/interlock/driver/kafka"
	"github.com/interlock-dev/interlock/driver/postgres"
)

// errConvicted reports that an audit has found errors.
var errConvicted = errors.New("the audit has found errors")

// stocked returns the initial units of each product: too few of the last products.
func stocked(orders []Order) map[string]int {
	units := map[string]int{}
	for _, o := range orders {
		units[o.Product] += o.Units
	}
	for i := range products / 4 {
		units[fmt.Sprint("product-", i)] /= 2
	}
	return units
}

// create creates or empties the tables, and sets the initial units.
func create(ctx context.Context, pool *pgxpool.Pool, orders []Order) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `create table if not exists inventory_shelf (product text primary key, units int not null);
			create table if not exists inventory_ledger (place bigserial primary key, id text not null, product text not null, seq int not null, units int not null);
			truncate inventory_shelf, inventory_ledger`)
		if err == nil {
			err = errors.Join(marks.Create(ctx, postgres.Tx(tx)), handled.Create(ctx, postgres.Tx(tx)), outgoing.Create(ctx, postgres.Tx(tx)))
		}
		for product, units := range stocked(orders) {
			if err == nil {
				_, err = tx.Exec(ctx, `insert into inventory_shelf values ($1, $2)`, product, units)
			}
		}
		return err
	})
}

// done reports whether each order is in the ledger.
func done(ctx context.Context, pool *pgxpool.Pool, orders []Order) (bool, error) {
	var n int
	err := pool.QueryRow(ctx, `select count(distinct id) from inventory_ledger`).Scan(&n)
	return n >= len(orders), err
}

// audit prints the result of a run, and returns errConvicted unless it is correct.
func (s settings) audit(ctx context.Context, pool *pgxpool.Pool, orders []Order, out io.Writer) error {
	var findings []string
	taken, times, last := map[string]int{}, map[string]int{}, map[string]int{}
	rows, err := pool.Query(ctx, `select id, product, seq, units from inventory_ledger order by place`)
	if err != nil {
		return err
	}
	var o Order
	_, err = pgx.ForEachRow(rows, []any{&o.ID, &o.Product, &o.Seq, &o.Units}, func() error {
		if times[o.ID]++; times[o.ID] == 2 {
			findings = append(findings, "taken twice: "+o.ID)
		}
		if !s.without[byProduct] && o.Seq < last[o.Product] {
			findings = append(findings, "out of order: "+o.ID)
		}
		taken[o.Product] += o.Units
		last[o.Product] = max(last[o.Product], o.Seq)
		return nil
	})
	if err != nil {
		return err
	}
	for _, o := range orders {
		if times[o.ID] == 0 {
			findings = append(findings, "lost: "+o.ID)
		}
	}
	units := stocked(orders)
	for _, product := range slices.Sorted(maps.Keys(units)) {
		var left int
		if err := pool.QueryRow(ctx, `select units from inventory_shelf where product = $1`, product).Scan(&left); err != nil {
			return err
		}
		if left < 0 {
			findings = append(findings, fmt.Sprintf("sold too many: %s has %d", product, left))
		}
		if left != units[product]-taken[product] {
			findings = append(findings, fmt.Sprintf("lost update: %s has %d, and %d of %d were taken", product, left, taken[product], units[product]))
		}
	}
	events, err := s.events(ctx, pool)
	if err != nil {
		return err
	}
	for _, o := range orders {
		if n := events[o.ID]; n != times[o.ID] {
			findings = append(findings, fmt.Sprintf("%d events for %s, which was taken %d times", n, o.ID, times[o.ID]))
		}
	}
	for _, f := range findings[:min(len(findings), 5)] {
		fmt.Fprintln(out, f)
	}
	fmt.Fprintf(out, "%d orders, %d findings\n", len(orders), len(findings))
	if len(findings) > 0 {
		return errConvicted
	}
	return nil
}

// events counts the events of each order of the run in Kafka, each event id once.
func (s settings) events(ctx context.Context, pool *pgxpool.Pool) (map[string]int, error) {
	var want int
	if err := pool.QueryRow(ctx, `select count(*) from inventory_ledger`).Scan(&want); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second) // after that, missing events are findings
	defer cancel()
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(strings.TrimPrefix(s.kafka, "kafka://"), ",")...),
		kgo.ConsumeTopics("inventory-updated", "inventory-insufficient"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	seen, counts := map[string]bool{}, map[string]int{}
	for len(seen) < want && ctx.Err() == nil {
		client.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
			for _, h := range r.Headers {
				id := string(h.Value)
				if rest, ok := strings.CutPrefix(id, "event-"+s.name+"-"); ok && h.Key == kafka.HeaderID && !seen[id] {
					seen[id] = true
					number, _, _ := strings.Cut(rest, "-")
					counts[s.name+"-"+number]++
				}
			}
		})
	}
	return counts, nil
}
