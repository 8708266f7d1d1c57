package attest_test

import (
	"testing"

	"go.uber.org/goleak"
)

// Closed sources and stopped servers leave no goroutine behind.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
