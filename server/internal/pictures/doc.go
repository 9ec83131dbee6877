// Package pictures contains the tests that draw docs/pictures: from runs, from measurements in the
// docs, and from the tables of `interlock advise`. It has no other code. Package bench draws
// the plots of its own measurements.
package pictures
