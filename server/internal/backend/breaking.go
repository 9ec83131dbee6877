package backend

// BreakingCosts returns the side effects of a forced release on this backend, and
// when the holder learns of it.
func (t Target) BreakingCosts() string {
	kind, table := t.Kind(), t.Setting("mode") == "table"
	switch {
	case kind == "mysql" && !table:
		return "the holder's whole session is ended, with every lock that its process holds in this database"
	case kind == "postgres" && !table:
		return "a holder whose process does not give it up within a second has its whole session ended, " +
			"and loses every lock that it holds in this database"
	case kind == "kube":
		return "the holder learns of it when it sees the Lease changed or fails to renew it"
	case kind == "postgres", kind == "mysql":
		return "the holder learns of it at its next renewal"
	}
	return ""
}

// Forgetting returns which forced releases this backend does not record.
func (t Target) Forgetting() string {
	switch t.Kind() {
	case "etcd", "zookeeper":
		return "about the last thousand of the namespace are kept"
	case "redis":
		return "the last thousand of each hash slot are kept, as long as the server keeps its data"
	case "kube":
		return "the last sixteen of each Lease are kept, as long as the Lease exists"
	}
	return "they are kept until an operator deletes them from the table"
}
