-- One request for all the quotas of a client, all or none: KEYS has a key for each quota, all in one hash slot.
--
-- Times are microseconds since the Unix epoch, whole numbers below 2^53, which Lua's doubles keep exactly. Buckets count
-- finer: a span is microseconds and, below that, a fraction with a denominator of the quota's.
--
-- ARGV: what to do (take, peek, charge, refund, forget; or probe, which only writes); the time, or nothing for that of this server; the least milliseconds for
-- which a key is kept; how many costs to try, and these, of which the first that all quotas admit is taken; then for each
-- quota what `read` wants.
--
-- Answers the number of the cost that is admitted, or 0, and four numbers for each quota (see `tell`).

local position = 0
local function text()
    position = position + 1
    return ARGV[position]
end
local function number()
    return tonumber(text())
end

local deed = text()
local now = number()
local least = number()
if not now then
    local time = redis.call('TIME')
    now = time[1] * 1000000 + time[2]
end
local costs = {}
for i = 1, number() do
    costs[i] = number()
end

-- No debt is longer: 2^52 us, some 142 years.
local LONGEST = 4503599627370496

local function whole(value)
    return string.format('%.0f', value)
end

local function span()
    return { us = number(), part = number() }
end

local function plus(a, b, denominator)
    local us, part = a.us + b.us, a.part + b.part
    if part >= denominator then
        us, part = us + 1, part - denominator
    end
    return { us = math.min(us, LONGEST), part = part }
end

local function minus(a, b, denominator)
    local us, part = a.us - b.us, a.part - b.part
    if part < 0 then
        us, part = us - 1, part + denominator
    end
    if us < 0 then
        return { us = 0, part = 0 }
    end
    return { us = us, part = part }
end

local function times(a, count, denominator)
    local product = { us = 0, part = 0 }
    while count > 0 do
        local odd = math.fmod(count, 2)
        if odd > 0 then
            product = plus(product, a, denominator)
        end
        a, count = plus(a, a, denominator), (count - odd) / 2
    end
    return product
end

local function exceeds(a, b)
    return a.us > b.us or (a.us == b.us and a.part > b.part)
end

-- ceil(a * b / c) where b <= c, exactly, also where the product is above 2^53.
local function share(a, b, c)
    local product = a * b
    if product < 9007199254740992 then
        local rest = math.fmod(product, c)
        return (product - rest) / c + (rest > 0 and 1 or 0)
    end
    -- Long division, a bit of `a` at a time.
    local bit = 1
    while bit * 2 <= a do
        bit = bit * 2
    end
    local quotient, rest = 0, 0
    while bit >= 1 do
        quotient, rest = quotient * 2, rest * 2
        if a >= bit then
            a, rest = a - bit, rest + b
        end
        while rest >= c do
            quotient, rest = quotient + 1, rest - c
        end
        bit = bit / 2
    end
    return quotient + (rest > 0 and 1 or 0)
end

-- The beginning of the window of this moment.
local function window(period)
    return now - math.fmod(now, period)
end

-- What each algorithm knows: `read` its arguments; `begin` from nothing, or from the text of a state; whether a cost
-- `fits`; `take` and `give` it; the `state` as text, and for how many microseconds it counts (`lasts`); what to `tell`.
local algorithms = {}

-- The state is the theoretical arrival time. Tells the debt.
algorithms.bucket = {
    read = function(quota)
        quota.denominator = number()
        quota.unit, quota.capacity = span(), span()
        quota.prices = {}
        for i = 1, #costs do
            quota.prices[i] = span()
        end
    end,
    begin = function(quota, found)
        local us, part = string.match(found or '', '^(%d+):(%d+)$')
        us, part = tonumber(us), tonumber(part)
        if us and part >= quota.denominator then
            -- Of a quota that was different then.
            us, part = us + 1, 0
        end
        quota.debt = { us = 0, part = 0 }
        if us and us >= now then
            quota.debt = { us = math.min(us - now, LONGEST), part = part }
        end
        return us ~= nil
    end,
    adopt = function(quota, units)
        quota.debt = times(quota.unit, units, quota.denominator)
        if exceeds(quota.debt, quota.capacity) then
            quota.debt = quota.capacity
        end
    end,
    fits = function(quota, i)
        return not exceeds(plus(quota.debt, quota.prices[i], quota.denominator), quota.capacity)
    end,
    take = function(quota, i)
        quota.debt = plus(quota.debt, quota.prices[i], quota.denominator)
    end,
    give = function(quota, i)
        quota.debt = minus(quota.debt, quota.prices[i], quota.denominator)
    end,
    state = function(quota)
        return whole(now + quota.debt.us) .. ':' .. whole(quota.debt.part)
    end,
    lasts = function(quota)
        return quota.debt.us + (quota.debt.part > 0 and 1 or 0)
    end,
    tell = function(quota)
        return quota.debt.us, quota.debt.part, 0, 0
    end,
}

-- The state is the beginning of a window and the count in it; of more than the limit, what is above it goes on to the
-- windows that follow. Tells the count, and the time to the end of the window.
algorithms.fixed = {
    read = function(quota)
        quota.limit, quota.period = number(), number()
    end,
    begin = function(quota, found)
        local start, count = string.match(found or '', '^(%d+):(%d+)$')
        quota.start, quota.count = tonumber(start), tonumber(count) or 0
        local here = window(quota.period)
        -- A window that lies ahead counts on: the clock has stepped back.
        if not start or quota.start < here then
            local windows = start and math.ceil((here - quota.start) / quota.period) or 0
            quota.start, quota.count = here, math.max(quota.count - windows * quota.limit, 0)
        end
        return start ~= nil
    end,
    adopt = function(quota, units)
        quota.count = math.min(units, quota.limit)
    end,
    fits = function(quota, i)
        return quota.count + costs[i] <= quota.limit
    end,
    take = function(quota, i)
        quota.count = math.min(quota.count + costs[i], LONGEST)
    end,
    give = function(quota, i)
        quota.count = math.max(quota.count - costs[i], 0)
    end,
    state = function(quota)
        return whole(quota.start) .. ':' .. whole(quota.count)
    end,
    lasts = function(quota)
        if quota.count == 0 then
            return 0
        end
        return math.min(quota.start + math.ceil(quota.count / quota.limit) * quota.period - now, LONGEST)
    end,
    tell = function(quota)
        return quota.count, quota.start + quota.period - now, 0, 0
    end,
}

-- The state is the beginning of a window, the count of the window before, and the count of this one. Tells both, and the
-- time to the end of the window.
algorithms.counter = {
    read = algorithms.fixed.read,
    begin = function(quota, found)
        local start, previous, count = string.match(found or '', '^(%d+):(%d+):(%d+)$')
        quota.start = tonumber(start)
        quota.previous, quota.count = tonumber(previous) or 0, tonumber(count) or 0
        local here = window(quota.period)
        if not start or quota.start < here then
            local windows = start and math.ceil((here - quota.start) / quota.period) or 0
            if windows > 0 then
                local owed = math.max(quota.count - (windows - 1) * quota.limit, 0)
                quota.previous = math.min(owed, quota.limit)
                quota.count = owed - quota.previous
            end
            quota.start = here
        end
        return start ~= nil
    end,
    adopt = algorithms.fixed.adopt,
    fits = function(quota, i)
        local left = math.min(quota.start + quota.period - now, quota.period)
        return quota.count + costs[i] + share(quota.previous, left, quota.period) <= quota.limit
    end,
    take = algorithms.fixed.take,
    give = function(quota, i)
        local of_count = math.min(costs[i], quota.count)
        quota.count = quota.count - of_count
        quota.previous = math.max(quota.previous - (costs[i] - of_count), 0)
    end,
    state = function(quota)
        return whole(quota.start) .. ':' .. whole(quota.previous) .. ':' .. whole(quota.count)
    end,
    lasts = function(quota)
        if quota.count + quota.previous == 0 then
            return 0
        end
        return math.min(quota.start + (math.ceil(quota.count / quota.limit) + 1) * quota.period - now, LONGEST)
    end,
    tell = function(quota)
        return quota.previous, quota.count, quota.start + quota.period - now, 0
    end,
}

-- A sorted set with a member for each unit, scored by its moment. Units charged beyond the limit have their moment when
-- those before them are a period old. Tells the count, and the time until the cost, one unit more, and all are there.
algorithms.log = {
    read = algorithms.fixed.read,
    begin = function(quota, found)
        quota.now, quota.count = now, 0
        if found then
            quota.count = redis.call('ZCARD', quota.key)
            -- Its time does not go back when the clock does. What is beyond the limit lies ahead.
            local last = algorithms.log.moment(quota, math.min(quota.count, quota.limit) - 1)
            quota.now = math.max(now, last)
            local over = whole(quota.now - quota.period)
            quota.count = quota.count - redis.call('ZREMRANGEBYSCORE', quota.key, '-inf', over)
        end
        return found ~= nil
    end,
    adopt = function(quota, units)
        redis.call('DEL', quota.key)
        algorithms.log.add(quota, math.min(units, quota.limit))
    end,
    fits = function(quota, i)
        return quota.count + costs[i] <= quota.limit
    end,
    -- The moment of the unit of this rank, the oldest first.
    moment = function(quota, rank)
        return tonumber(redis.call('ZRANGE', quota.key, rank, rank, 'WITHSCORES')[2])
    end,
    add = function(quota, units)
        -- Members of one moment are numbered on, so that none is written twice.
        local at, numbered = nil, 0
        for _ = 1, units do
            local moment = quota.now
            if quota.count >= quota.limit then
                moment = math.max(algorithms.log.moment(quota, quota.count - quota.limit) + quota.period, moment)
            end
            if moment ~= at then
                at, numbered = moment, redis.call('ZCOUNT', quota.key, whole(moment), whole(moment))
            end
            redis.call('ZADD', quota.key, whole(moment), string.format('%.0f:%09d', moment, numbered))
            numbered, quota.count = numbered + 1, quota.count + 1
        end
    end,
    take = function(quota, i)
        algorithms.log.add(quota, math.min(costs[i], math.max(8 * quota.limit - quota.count, 0)))
    end,
    give = function(quota, i)
        local units = math.min(costs[i], quota.count)
        if units > 0 then
            redis.call('ZREMRANGEBYRANK', quota.key, -units, -1)
            quota.count = quota.count - units
        end
    end,
    lasts = function(quota)
        return quota.count > 0 and algorithms.log.moment(quota, -1) + quota.period - now or 0
    end,
    tell = function(quota)
        if quota.count == 0 then
            return 0, 0, 0, 0
        end
        local function until_free(rank)
            return rank >= 0 and rank < quota.count and algorithms.log.moment(quota, rank) + quota.period - now or 0
        end
        local retry = until_free(quota.count + costs[#costs] - quota.limit - 1)
        return quota.count, retry, until_free(math.max(quota.count - quota.limit, 0)), algorithms.log.lasts(quota)
    end,
}

-- What is kept for the quota: a string, or for the log whether there is a sorted set. What is of another kind is not ours,
-- and makes room.
local function find(quota)
    local is_log = quota.does == algorithms.log
    local kind = is_log and redis.call('TYPE', quota.key).ok or nil
    if kind == 'none' then
        return nil
    elseif kind == 'zset' then
        return ''
    end
    local found = redis.pcall('GET', quota.key)
    if type(found) == 'string' then
        return found
    elseif found then
        redis.call('DEL', quota.key)
    end
    return nil
end

local function open(key)
    local quota = { key = key, does = algorithms[text()] }
    quota.does.read(quota)
    local found = find(quota)
    -- A bare number is somebody's INCR: so much was used.
    local units = found and tonumber(string.match(found, '^%d+$'))
    if units or (found and found ~= '' and quota.does == algorithms.log) then
        quota.does.begin(quota, nil)
        quota.does.adopt(quota, math.min(units or 0, LONGEST))
        quota.is_adopted = true
    else
        quota.is_found = quota.does.begin(quota, found)
    end
    return quota
end

local function ttl(quota)
    return whole(math.max(math.ceil(quota.does.lasts(quota) / 1000), least, 1))
end

local function save(quota)
    if quota.does.lasts(quota) <= 0 then
        redis.call('DEL', quota.key)
    elseif quota.does.state then
        redis.call('SET', quota.key, quota.does.state(quota), 'PX', ttl(quota))
    else
        redis.call('PEXPIRE', quota.key, ttl(quota))
    end
end

-- Leaves it as it is, but for a key that would never expire.
local function leave(quota)
    if quota.is_adopted or (quota.is_found and redis.call('PTTL', quota.key) == -1) then
        save(quota)
    end
end

if deed == 'probe' then
    redis.call('SET', KEYS[1], '0', 'PX', 1000)
    return { 0 }
end

local quotas = {}
for i, key in ipairs(KEYS) do
    quotas[i] = open(key)
end

local function all_fit(i)
    for _, quota in ipairs(quotas) do
        if not quota.does.fits(quota, i) then
            return false
        end
    end
    return true
end

local admitted = 0
for i = 1, #costs do
    if all_fit(i) then
        admitted = i
        break
    end
end

for _, quota in ipairs(quotas) do
    if deed == 'charge' then
        quota.does.take(quota, 1)
    elseif deed == 'refund' then
        quota.does.give(quota, 1)
    elseif deed == 'forget' then
        quota.does.begin(quota, nil)
    elseif deed == 'take' and admitted > 0 then
        quota.does.take(quota, admitted)
    end
    if deed == 'peek' or (deed == 'take' and admitted == 0) then
        leave(quota)
    else
        save(quota)
    end
end

local answer = { admitted }
for _, quota in ipairs(quotas) do
    for _, value in ipairs({ quota.does.tell(quota) }) do
        answer[#answer + 1] = value
    end
end
return answer
