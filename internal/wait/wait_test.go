package wait_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/brevet-dev/brevet/internal/wait"
)

func TestForReturnsAfterTheTimeOrWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if !wait.For(t.Context(), time.Minute) || time.Since(began) != time.Minute {
			t.Errorf("got an end after %s, want true after a minute", time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began = time.Now()
		if wait.For(ctx, time.Minute) || time.Since(began) != time.Second {
			t.Errorf("got an end after %s, want false after a second", time.Since(began))
		}
	})
}
