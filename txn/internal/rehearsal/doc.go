// Package rehearsal plays users' transactions in their tests, for the kits sagatest and
// tcctest: by plots in which calls are lost, repeated or late, with a coordinator that can
// crash at each point that it passes, in virtual time, and with a world that is compared
// as lines of text. It does not judge what a trial shows, and does not know sagas or TCC:
// a kit says which plots there are, and what is wrong with what they lead to.
package rehearsal
