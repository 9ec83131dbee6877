package observe

// Stock receives what happens to the units of items. Every hook may be nil.
// Hooks must return at once. In a SQL transaction of the user's they are called
// when the statement was answered: what they tell of is undone if the
// transaction is not committed.
type Stock struct {
	Short     func(StockShort)
	GivenAway func(StockGivenAway)
}

// StockShort: there were too few units for a reservation or an adjustment, which
// was refused.
type StockShort struct {
	Item      string
	Want      int64 // units that were to be taken
	Available int64 // units that there were
}

// StockGivenAway: a reservation had expired, and its units of one item went to
// somebody else. It can no longer be confirmed. Only SQL tables tell it.
type StockGivenAway struct {
	Item        string
	Reservation string
	N           int64
}
