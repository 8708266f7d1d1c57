package migrations

// CheckVersion lets tests check versions of servers that are not installed here.
var CheckVersion = checkVersion
