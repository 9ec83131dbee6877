package mysql

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// filters reads the variables that exclude changes from replication to this server: a branch prepared
// there would be incomplete.
const filters = `select variable_name, variable_value from information_schema.global_variables where variable_value <> ''
	and variable_name in ('REPLICATE_DO_DB', 'REPLICATE_IGNORE_DB', 'REPLICATE_DO_TABLE',
		'REPLICATE_IGNORE_TABLE', 'REPLICATE_WILD_DO_TABLE', 'REPLICATE_WILD_IGNORE_TABLE')`

const accessDenied = 1227

// refuseXA returns why prepared branches are not safe on a server, or nil.
func refuseXA(ctx context.Context, q querier) (why, err error) {
	f, err := ask(ctx, q)
	var filter, value, binlog string
	if err == nil {
		err = one(ctx, q, filters, nil, &filter, &value)
	}
	if err == nil && filter == "" {
		filter, value, err = logFilter(ctx, q)
	}
	if err == nil {
		err = one(ctx, q, `select variable_value from information_schema.global_variables where variable_name = 'BINLOG_STORAGE_ENGINE'`,
			nil, &binlog)
	}
	if err != nil {
		return nil, err
	}
	return f.refuseXA(filter, value, binlog), nil
}

// logFilter returns the filter that excludes changes from the binary log, and so from every replica.
// Without the privilege to monitor the log, it finds none.
func logFilter(ctx context.Context, q querier) (filter, value string, err error) {
	var file, position, do, ignore string
	err = one(ctx, q, `show master status`, nil, &file, &position, &do, &ignore)
	switch {
	case isNumber(err, accessDenied):
		return "", "", nil
	case do != "":
		return "BINLOG_DO_DB", do, err
	case ignore != "":
		return "BINLOG_IGNORE_DB", ignore, err
	}
	return "", "", err
}

func (f facts) refuseXA(filter, value, binlog string) error {
	switch {
	case !strings.Contains(f.version, "MariaDB"):
		return fmt.Errorf("the server is %s: MariaDB 10.5 or later is needed", f.version)
	case f.galera:
		return errors.New("the server is a node of a Galera cluster, which does not replicate prepared branches: use a saga or TCC there")
	case f.refusal() != nil: // its version is too old, or it is read-only
		return f.refusal()
	case filter != "":
		return fmt.Errorf("the server has %s = %s: prepared branches are not safe under replication filters", strings.ToLower(filter), value)
	case strings.EqualFold(binlog, "innodb"):
		return errors.New("the server keeps its binary log in InnoDB, which does not replicate prepared branches")
	}
	return nil
}
