# Runs R code for `driver.py`. Nothing of it is visible to the code: names are in an environment of their own,
# which finds the functions of the base package first.
local({

# Rows and columns of a data frame's HTML.
ROWS_MAX <- 60L
COLUMNS_MAX <- 50L
CALL_CHARS_MAX <- 200L
CALLS_MAX <- 50L

# --- Files. They are opened for each use, because code may close all connections.

read_request <- function(path) {
  from <- file(path, "rb")
  on.exit(close(from))
  found <- list()
  while (length(size <- readBin(from, "integer", 1L, endian = "big")))
    found[[length(found) + 1L]] <- readBin(from, "raw", size)
  found
}

text_of <- function(bytes) {
  text <- rawToChar(bytes)
  Encoding(text) <- "UTF-8"
  text
}

write_event <- function(path, texts) {
  to <- file(path, "wb")
  on.exit(close(to))
  for (one in texts) {
    bytes <- if (is.raw(one)) one else charToRaw(enc2utf8(one))
    writeBin(length(bytes), to, endian = "big")
    writeBin(bytes, to)
  }
}

read_order <- function(path) {
  from <- fifo(path, "r", blocking = TRUE)
  on.exit(close(from))
  readLines(from, 1L)
}

answer <- function(path, word) {
  to <- fifo(path, "w", blocking = TRUE)
  on.exit(close(to))
  writeLines(word, to)
}

# --- What values look like.

printed <- function(value) {
  to <- rawConnection(raw(0L), "wb")
  depth <- sink.number()
  sink(to)
  on.exit({
    while (sink.number() > depth) sink()
    close(to)
  })
  print(value)
  sub("\n$", "", text_of(rawConnectionValue(to)))
}

html_of <- function(frame) {
  rows <- nrow(frame)
  columns <- ncol(frame)
  frame <- as.data.frame(frame)
  part <- frame[seq_len(min(rows, ROWS_MAX)), seq_len(min(columns, COLUMNS_MAX)), drop = FALSE]
  escaped <- function(text) {
    text <- gsub("&", "&amp;", enc2utf8(text), fixed = TRUE)
    gsub(">", "&gt;", gsub("<", "&lt;", text, fixed = TRUE), fixed = TRUE)
  }
  cells <- lapply(part, function(column) paste0("<td>", escaped(trimws(format(column))), "</td>"))
  begin <- list("<tr><th>", escaped(row.names(part)), "</th>")
  lines <- do.call(paste0, c(begin, unname(cells), list("</tr>")))
  head <- paste0("<th>", escaped(names(part)), "</th>", collapse = "")
  is_part <- nrow(part) < rows || ncol(part) < columns
  all <- if (is_part) sprintf("<p>%d rows and %d columns</p>", rows, columns)
  paste(c("<table>", paste0("<thead><tr><th></th>", head, "</tr></thead>"), "<tbody>",
          if (nrow(part)) lines, "</tbody>", "</table>", all), collapse = "\n")
}

# --- Errors.

# The calls of the kernel from which all calls of the code come.
EVALUATE <- quote(eval(one, globalenv()))
SHOW <- quote(withVisible(eval(one, globalenv())))

call_of <- function(condition) {
  call <- conditionCall(condition)
  if (!identical(call, EVALUATE)) call
}

# The calls of the code, when a handler of a condition is called. The kernel's come first.
calls_after <- function(depth) {
  calls <- sys.calls()
  # This function, and the handler.
  last <- length(calls) - 2L
  if (last > 0L && identical(calls[[last]][[1L]], quote(.handleSimpleError))) last <- last - 1L
  while (depth < last && list(calls[[depth + 1L]]) %in% list(EVALUATE, SHOW)) depth <- depth + 1L
  if (depth < last) calls[(depth + 1L):last]
}

call_text <- function(call) {
  text <- paste(deparse(call, nlines = 3L), collapse = " ")
  if (nchar(text) > CALL_CHARS_MAX) text <- paste0(substr(text, 1L, CALL_CHARS_MAX), "...")
  from <- attr(call, "srcref")
  if (is.null(from)) text else paste0(text, " at ", attr(from, "srcfile")$filename, "#", from[[1L]])
}

failure <- function(error, calls) {
  message <- conditionMessage(error)
  is_plain <- inherits(error, "simpleError")
  name <- if (is_plain) "Error" else class(error)[[1L]]
  call <- call_of(error)
  first <- if (is.null(call)) paste0("Error: ", message)
           else paste0("Error in ", call_text(call), ": ", message)
  calls <- rev(calls)
  shown <- vapply(utils::head(calls, CALLS_MAX), call_text, "")
  numbers <- rev(seq_along(calls))[seq_along(shown)]
  trace <- c(first, if (length(shown)) c("Calls, the last one first:", paste0(numbers, ": ", shown)))
  c(name = name, value = message, traceback = paste(trace, collapse = "\n"))
}

function(orders, request, answers, event) {
  plots <- file.path(tempdir(), "pandastack-plots")
  opened <- 0L
  if (!l10n_info()$`UTF-8`) Sys.setlocale("LC_CTYPE", "C.UTF-8")

  tell <- function(kind, fields) {
    write_event(event, c(kind, rbind(names(fields), fields)))
    answer(answers, "event")
    read_order(orders)
  }

  warned <- function(warning) {
    level <- getOption("warn")
    # R makes it an error.
    if (isTRUE(level >= 2)) return()
    call <- call_of(warning)
    where <- if (!is.null(call)) paste0(" in ", call_text(call))
    if (!isTRUE(level < 0))
      cat("Warning", where, ": ", conditionMessage(warning), "\n", sep = "", file = stderr())
    tryInvokeRestart("muffleWarning")
  }

  # --- Plots are drawn to files, a page each.

  options(bitmapType = "cairo", device = function(...) {
    dir.create(plots, FALSE, TRUE)
    opened <<- opened + 1L
    size <- c(getOption("repr.plot.width", 7), getOption("repr.plot.height", 5))
    grDevices::png(file.path(plots, sprintf("%06d-%%06d.png", opened)), size[[1L]], size[[2L]], units = "in",
                   res = getOption("repr.plot.res", 120))
  })

  show_plots <- function() {
    # A device without a page has only been prepared.
    for (number in grDevices::dev.list()) {
      path <- attr(.Devices[[number]], "filepath")
      if (is.character(path) && dirname(path) == plots && file.exists(sprintf(path, 1L)))
        grDevices::dev.off(number)
    }
    drawn <- sort(list.files(plots, full.names = TRUE))
    on.exit(unlink(drawn))
    for (path in drawn) {
      picture <- readBin(path, "raw", file.size(path))
      tell("result", list(is_main_result = "false", png = picture))
    }
  }

  show <- function(value, is_last) {
    text <- printed(value)
    if (!nzchar(text)) return()
    html <- if (is.data.frame(value)) tryCatch(html_of(value), error = function(error) NULL)
    tell("result", c(is_main_result = tolower(is_last), text = text, html = html))
  }

  depth <- 0L

  evaluate <- function(code, name) {
    failed <- function(error) {
      found <- list(message = conditionMessage(error), call = NULL)
      stop(structure(found, class = c("ParseError", "error", "condition")))
    }
    parsed <- tryCatch({
      lines <- strsplit(gsub("\r\n", "\n", text_of(code), fixed = TRUE), "\n", fixed = TRUE)[[1L]]
      parse(text = lines, srcfile = srcfilecopy(name, lines), keep.source = TRUE)
    }, error = failed)
    from <- attr(parsed, "srcref")
    depth <<- sys.nframe()
    for (at in seq_along(parsed)) {
      one <- structure(parsed[at], srcref = from[at])
      found <- withVisible(eval(one, globalenv()))
      if (found$visible) show(found$value, at == length(parsed))
    }
  }

  run <- function(code, name) {
    calls <- NULL
    depth <<- Inf
    tell_error <- function(error) tell("error", failure(error, calls))
    tell_interrupt <- function(interrupt) {
      value <- "the code was interrupted"
      tell("error", c(name = "Interrupted", value = value, traceback = paste0("Interrupted: ", value)))
    }
    watched <- function() withCallingHandlers(
      evaluate(code, name), warning = warned, error = function(error) calls <<- calls_after(depth)
    )
    tryCatch(withRestarts(allowInterrupts(watched()), abort = function() NULL),
             error = tell_error, interrupt = tell_interrupt)
    tryCatch(show_plots(), error = tell_error)
  }

  # R ignores interrupts while it waits for a command. It is interrupted afterwards.
  check_interrupt <- function() {
    if (isTRUE(file.size(request) > 0)) return()
    tools::pskill(Sys.getpid(), tools::SIGINT)
    Sys.sleep(0)
  }
  local({
    steps <- as.list(body(system))
    check <- call("on.exit", as.call(list(check_interrupt)), add = TRUE)
    unlockBinding("system", baseenv())
    body(system, baseenv()) <- as.call(append(steps, check, length(steps) - 1L))
    assign("system", system, baseenv())
    lockBinding("system", baseenv())
  })

  # An interrupt that came after its run.
  forget_interrupt <- function() tryCatch(allowInterrupts(Sys.sleep(0)), interrupt = function(interrupt) NULL)

  suspendInterrupts(repeat {
    # Nothing, when the context was ended.
    if (!length(read_order(orders))) quit("no")
    forget_interrupt()
    wanted <- read_request(request)
    answer(answers, "begun")
    seed <- text_of(wanted[[3L]])
    if (nzchar(seed)) set.seed(as.integer(seed))
    given <- vapply(wanted[-(1:3)], text_of, "")
    env <- stats::setNames(given[c(FALSE, TRUE)], given[c(TRUE, FALSE)])
    before <- Sys.getenv(names(env), NA, names = TRUE)
    if (length(env)) do.call(Sys.setenv, as.list(env))
    run(wanted[[1L]], text_of(wanted[[2L]]))
    Sys.unsetenv(names(before)[is.na(before)])
    if (!all(is.na(before))) do.call(Sys.setenv, as.list(before[!is.na(before)]))
    answer(answers, "done")
  })
}

}, new.env(parent = baseenv()))
