package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

const maxSecretFile = 64 << 10

// readSecretFile returns the content of a file without the line end that editors add.
func readSecretFile(path string) (string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("reading a secret: %w", err)
	}
	if len(data) > maxSecretFile {
		return "", fmt.Errorf("%s is larger than 64 KiB, so it is not a secret", path)
	}
	secret := strings.TrimRight(string(data), "\r\n")
	if secret == "" {
		return "", errors.New(path + " is empty")
	}
	return secret, nil
}
