package mysql

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// filters are the variables that make a server keep a part of its changes from its
// replicas, or from itself as one: a branch that is prepared there and committed here
// would be half a branch.
const filters = `select variable_name, variable_value from information_schema.global_variables where variable_value <> ''
	and variable_name in ('BINLOG_DO_DB', 'BINLOG_IGNORE_DB', 'REPLICATE_DO_DB', 'REPLICATE_IGNORE_DB', 'REPLICATE_DO_TABLE',
		'REPLICATE_IGNORE_TABLE', 'REPLICATE_WILD_DO_TABLE', 'REPLICATE_WILD_IGNORE_TABLE')`

// refuseXA is why prepared branches are not safe on a server, if they are not.
func refuseXA(ctx context.Context, q querier) (why, err error) {
	f, err := ask(ctx, q)
	var filter, value, binlog string
	if err == nil {
		err = one(ctx, q, filters, nil, &filter, &value)
	}
	if err == nil { // the filters of the binary log are no variables in older versions
		_, err = maybe(ctx, q, `select variable_value from information_schema.global_variables where variable_name = 'BINLOG_STORAGE_ENGINE'`,
			nil, &binlog)
	}
	if err != nil {
		return nil, err
	}
	return f.refuseXA(filter, value, binlog), nil
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
