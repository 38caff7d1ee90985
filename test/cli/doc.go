// Package cli tests the command line with the real binary: what it prints, the codes it
// exits with, what it leaves behind, and how its processes live through each other's
// ends. The scripts in testdata/script are what a person types; the Go tests are what
// takes two commands at once. Tests of what a command asks the head for belong beside
// the head.
package cli
