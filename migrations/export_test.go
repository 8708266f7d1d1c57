package migrations

// CheckVersion lets tests check versions of servers that are not installed here.
var CheckVersion = checkVersion

// KeepLocalhost lets tests give it another resolver.
var KeepLocalhost = keepLocalhost
