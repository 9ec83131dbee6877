package observe

// Stock receives the events of a stock of items. Every hook may be nil. Hooks
// must return at once. In a SQL transaction of the caller, hooks run when the
// statement was answered. If the transaction rolls back, their event did not
// happen.
type Stock struct {
	Short     func(StockShort)
	GivenAway func(StockGivenAway)
}

// StockShort reports that a reservation or an adjustment was refused for too few
// units.
type StockShort struct {
	Item      string
	Want      int64 // requested units
	Available int64 // free units
}

// StockGivenAway reports that a reservation expired and another caller took its
// units of one item. It can no longer be confirmed. Only SQL tables report it.
type StockGivenAway struct {
	Item        string
	Reservation string
	N           int64
}
