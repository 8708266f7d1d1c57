package attest_test

import (
	"testing"

	"go.uber.org/goleak"
)

// Sources that were closed, and servers that stopped, leave no goroutine behind.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
