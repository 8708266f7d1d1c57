package main

import (
	"context"
	"errors"
	"fmt"
	"os"
)

// LogoutCmd is `brevet logout`.
type LogoutCmd struct{}

// Run deletes the stored login and revokes its refresh token at the provider, if possible. An unavailable provider does not
// prevent a logout.
func (*LogoutCmd) Run(ctx context.Context, con *console) error {
	l, err := readLogin()
	if errors.Is(err, errLoginEnded) {
		return printLogout(con, "you were not logged in")
	}
	path, pathErr := loginFile()
	if removeErr := errors.Join(pathErr, os.Remove(path)); removeErr != nil {
		return fmt.Errorf("deleting the login: %w", removeErr)
	}
	if err == nil { // otherwise the stored login could not be read
		if err := l.revoke(ctx); err != nil {
			con.say("the refresh token was not revoked at the provider: " + quoteProvider(err.Error()))
		}
	}
	return printLogout(con, "logged out")
}

func printLogout(con *console, text string) error {
	if con.json {
		return con.encode(map[string]bool{"logged_in": false})
	}
	_, err := fmt.Fprintln(con.out, text)
	return err
}
