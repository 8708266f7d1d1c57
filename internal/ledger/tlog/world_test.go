package tlog_test

import (
	"os"
	"testing"

	"github.com/brevet-dev/brevet/internal/testkit"
)

func TestMain(m *testing.M) { os.Exit(testkit.Main(m)) }

// The short names of what testkit makes and does.
var (
	grow, sealed = testkit.Grow, testkit.Sealed
	refusedBy    = testkit.RefusedBy
	line         = testkit.Cosignature
)

const origin = testkit.Origin

type notary = testkit.Notary

func newNotary(t *testing.T) notary { return testkit.NewNotary(t, origin) }

// SQLSTATE codes that a statement is refused with.
const (
	noRight   = "42501" // insufficient_privilege: a grant or an append-only trigger
	violation = "23514" // check_violation
	notUnique = "23505"
	noParent  = "23503" // foreign_key_violation
	isNull    = "23502"
)
